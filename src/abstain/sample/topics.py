"""The handbook's facts about single products, beside the common sections: data, no logic.

A product gets a few of these facts, so most of them are on few pages. Their values are mostly words (a city,
a weekday, a shop), which a small model reads more reliably than one number among others of the same kind.
"""

from __future__ import annotations

from abstain.sample.catalogue import Attribute, ProductSection, Words, count, days, eur, fact, months, pct

_CITY = Words("Lisbon", "Oslo", "Vienna", "Dublin", "Prague", "Helsinki", "Madrid", "Athens", "Zurich", "Riga")
_DAY = Words("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTH = Words("January", "March", "April", "June", "July", "September", "October", "December")
_CHANNEL = Words("in the mobile app", "by phone", "at any branch", "by letter", "by email", "in online banking")
_SHOP = Words(
    "Nordmart", "Bluebird Books", "Velo Corner", "Green Basket", "Cinema Royal", "Luna Optics", "Home Depot Nine"
)
_COLOUR = Words("blue", "green", "silver", "orange", "black", "purple", "white", "yellow", "red")
_PAPER = Words(
    "a passport", "a payslip", "a rental contract", "a tax return", "a birth certificate", "a driving licence"
)
_TEAM = Words("Falcon", "Harbour", "Meadow", "Compass", "Lantern", "Bridge", "Orchard", "Summit")
_GIFT = Words("a backpack", "an umbrella", "a power bank", "a cookbook", "a water bottle", "a headlamp", "a blanket")
_LANGUAGE = Words("Spanish", "Polish", "Turkish", "Italian", "Portuguese", "French", "Dutch", "Greek")
_CAUSE = Words("forests", "schools", "animal shelters", "clean rivers", "food banks", "libraries", "sports clubs")
_SPEAKER = Words("Ms Lindqvist", "Mr Okafor", "Ms Moreau", "Mr Tanaka", "Ms Novak", "Mr Silva")
_TESTER = Words("Crane", "Osprey", "Pelican", "Swift", "Magpie", "Curlew")
_PRIZE = Words("Golden Coin", "Blue Ribbon", "Fair Deal", "Clear Words", "Top Choice", "Bright Idea")
_MAGAZINE = Words("Purse", "Cashflow", "Money Week", "Thrift", "Penny", "Ledger")
_FIRM = Words("Polaris", "Brightwater", "Ironwood", "Kingfisher", "Northgate", "Silverline", "Tidewell", "Westbrook")


def _theme(title: str, *facts: Attribute) -> ProductSection:
    return ProductSection(title, "text", facts)


THEMES = (
    _theme("Service team",
        fact("team", "Questions about the {p} are answered by the {v} team.", _TEAM,
             "Which team answers questions about the {p}?", "Who answers my questions about the {p}?"),
        fact("language", "The {p} helpline also speaks {v}.", _LANGUAGE,
             "Which other language does the {p} helpline speak?"),
        fact("office", "The office for the {p} is in {v}.", _CITY,
             "In which city is the office for the {p}?", "Where is the {p} office?"),
        fact("closedday", "The {p} helpline is closed on {v}.", _DAY, "On which day is the {p} helpline closed?"),
        fact("reply", "Emails about the {p} are answered within {v}.", days(2, 9),
             "How quickly are emails about the {p} answered?"),
    ),
    _theme("Paperwork",
        fact("proof", "To apply for the {p}, bring {v}.", _PAPER, "What must I bring to apply for the {p}?",
             "Which document do I need to apply for the {p}?"),
        fact("sign", "The {p} contract is signed {v}.", _CHANNEL, "How is the {p} contract signed?",
             "Where do I sign the {p} contract?"),
        fact("envelope", "The {p} contract comes in a {v} envelope.", _COLOUR,
             "What colour is the envelope of the {p} contract?"),
        fact("archive", "Papers about the {p} are kept in {v}.", _CITY, "In which city are papers about the {p} kept?"),
        fact("printer", "The {p} brochure is printed by {v}.", _FIRM, "Who prints the {p} brochure?"),
    ),
    _theme("Rewards",
        fact("shop", "{p} customers get a discount at {v}.", _SHOP, "Where do {p} customers get a discount?",
             "Which shop gives a discount to {p} customers?"),
        fact("rebate", "The partner discount of the {p} is {v}.", pct(3, 20, 1),
             "How high is the partner discount of the {p}?"),
        fact("gift", "Every new {p} customer receives {v} as a gift.", _GIFT,
             "Which gift does a new {p} customer receive?", "What do I get as a gift when I choose the {p}?"),
        fact("draw", "The {p} prize draw takes place in {v}.", _MONTH, "In which month is the {p} prize draw?"),
        fact("friend", "Whoever brings a friend to the {p} receives {v}.", eur(10, 90, 10),
             "How much do I receive for bringing a friend to the {p}?"),
        fact("charity", "With each {p}, the bank gives money to {v}.", _CAUSE,
             "What does the bank give money to with each {p}?"),
    ),
    _theme("Mobile app",
        fact("symbol", "In the app, the {p} symbol has the colour {v}.", _COLOUR, "What colour is the {p} symbol in the app?"),
        fact("report", "The app shows the {p} report every {v}.", _DAY,
             "On which day does the app show the {p} report?"),
        fact("history", "The app keeps the {p} history for {v}.", months(6, 60, 6),
             "How long does the app keep the {p} history?"),
        fact("developer", "The app page of the {p} was made by {v}.", _FIRM, "Who made the app page of the {p}?"),
        fact("devices", "The {p} can be used on {v} phones.", count(2, 9), "On how many phones can the {p} be used?"),
    ),
    _theme("Changes and complaints",
        fact("close", "The {p} is cancelled {v}.", _CHANNEL, "How do I cancel the {p}?",
             "I no longer want the {p}. How is it cancelled?"),
        fact("address", "A new address for the {p} is reported {v}.", _CHANNEL,
             "How do I report a new address for the {p}?"),
        fact("complaint", "Complaints about the {p} go to the {v} team.", _TEAM,
             "Which team handles complaints about the {p}?", "Where do complaints about the {p} go?"),
        fact("review", "The {p} terms are reviewed in {v}.", _MONTH, "In which month are the {p} terms reviewed?"),
        fact("umpire", "Disputes about the {p} are settled in {v}.", _CITY,
             "In which city are disputes about the {p} settled?"),
    ),
    _theme("Partners",
        fact("insurer", "The risk of the {p} is carried by {v}.", _FIRM, "Which company carries the risk of the {p}?"),
        fact("auditor", "The {p} is tested once a year by {v}.", _TESTER,
             "Who tests the {p} once a year?"),
        fact("trial", "The {p} was first sold in {v}.", _CITY, "Where was the {p} first sold?",
             "In which city was the {p} first sold?"),
        fact("award", "The {p} won the {v} prize.", _PRIZE,
             "Which prize did the {p} win?"),
        fact("magazine", "The {p} was praised by the magazine {v}.", _MAGAZINE,
             "Which magazine praised the {p}?"),
    ),
    _theme("Events",
        fact("evening", "The yearly {p} evening is held in {v}.", _CITY, "Where is the yearly {p} evening held?"),
        fact("month", "The {p} webinar is given in {v}.", _MONTH, "In which month is the {p} webinar?"),
        fact("ticket", "A seat at the {p} workshop costs {v}.", eur(5, 45, 5),
             "What does a seat at the {p} workshop cost?"),
        fact("speaker", "The {p} workshop is led by {v}.", _SPEAKER,
             "Who leads the {p} workshop?"),
        fact("weekday", "The {p} advice hour is on {v}.", _DAY, "On which day is the {p} advice hour?",
             "When is the {p} advice hour?"),
    ),
)  # fmt: skip
