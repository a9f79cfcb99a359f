"""The products of the fictional Aurora Bank and the facts of its handbook: data, no logic.

Six product lines of near-duplicates: all products of a line share these sections and differ only in their
values, as real handbooks do; some even share half of their name. An attribute is one fact of each product;
`text` is its table row's label, its list item or its sentence, with `{v}` for the value and `{p}` for the
product. `asks` are phrasings of questions about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Range:
    """Values that a product may be given: `low` to `high` by `step`, in `unit`, before the unit is written out."""

    unit: Literal["euros", "percent", "days", "months", "years", "clock", "date", "number"]
    low: float
    high: float
    step: float


@dataclass(frozen=True, init=False)
class Words:
    """Words that a product may be given, as the handbook writes them."""

    choices: tuple[str, ...]

    def __init__(self, *choices: str) -> None:
        object.__setattr__(self, "choices", choices)


@dataclass(frozen=True)
class Attribute:
    """One kind of fact. Two ranges make a fact of two parts, joined by `form`."""

    key: str
    text: str
    ranges: tuple[Range | Words, ...]
    asks: tuple[str, ...]
    form: str = "{0}"


@dataclass(frozen=True)
class ProductSection:
    """A section of every document of a line; `header` names the two columns of a table."""

    title: str
    kind: Literal["text", "table", "list"]
    attributes: tuple[Attribute, ...]
    header: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class ProductLine:
    """A product line. `noun` follows each name: "Gold" + "Card". `closed` maps a name to the entitlement it needs."""

    key: str
    business: str
    noun: str
    names: tuple[str, ...]
    sections: tuple[ProductSection, ...]
    closed: dict[str, str]


def fact(key: str, text: str, ranges: Range | Words | tuple[Range, ...], *asks: str, form: str = "{0}") -> Attribute:
    return Attribute(key, text, ranges if isinstance(ranges, tuple) else (ranges,), asks, form)


def eur(low: float, high: float, step: float) -> Range:
    return Range("euros", low, high, step)


def pct(low: float, high: float, step: float = 0.1) -> Range:
    return Range("percent", low, high, step)


def days(low: float, high: float, step: float = 1) -> Range:
    return Range("days", low, high, step)


def months(low: float, high: float, step: float = 1) -> Range:
    return Range("months", low, high, step)


def years(low: float, high: float) -> Range:
    return Range("years", low, high, 1)


def count(low: float, high: float) -> Range:
    return Range("number", low, high, 1)


def clock(low: float, high: float) -> Range:
    return Range("clock", low, high, 0.5)


_DATE = Range("date", 0, 329, 7)

_CARDS = (
    ProductSection("Fees", "table", (
        fact("annual", "Annual fee of the {p}", eur(15, 120, 5),
              "What is the annual fee of the {p}?", "How much does the {p} cost per year?",
              "What do I pay every year for holding the {p}?"),
        fact("replacement", "Replacement of a {p}", eur(4, 22, 1),
              "What does a replacement for a broken {p} cost?", "How much is a replacement {p}?",
              "My {p} snapped in two. What will a new one cost me?"),
        fact("abroad", "Cash withdrawal abroad with the {p}", (pct(1.5, 4, 0.25), eur(3, 9, 1)),
              "What is the fee for a cash withdrawal abroad with the {p}?",
              "I take out cash abroad with my {p}. What am I charged?", form="{0}, at least {1}"),
        fact("foreign", "Payment in a foreign currency with the {p}", pct(0.5, 2.9, 0.15),
              "What is charged for a payment in a foreign currency with the {p}?",
              "How much is the foreign currency fee of the {p}?"),
    ), ("Fee", "Amount")),
    ProductSection("Limits", "text", (
        fact("cash", "With the {p}, up to {v} in cash can be withdrawn a day.", eur(300, 2000, 100),
              "How much cash can I withdraw a day with the {p}?", "What is the daily cash limit of the {p}?"),
        fact("purchase", "Purchases with the {p} are limited to {v} a day.", eur(1000, 9000, 500),
              "What is the daily limit for purchases with the {p}?", "How much can I spend a day with the {p}?"),
        fact("contactless", "A contactless payment with the {p} needs no PIN up to {v}.", eur(20, 100, 5),
              "Up to which amount can I pay contactless without a PIN with the {p}?",
              "What is the contactless limit without a PIN for the {p}?"),
    )),
    ProductSection("Who can apply", "list", (
        fact("age", "Minimum age for the {p}: {v}", years(12, 26), "What is the minimum age for the {p}?",
              "How old must I be to get the {p}?"),
        fact("income", "Minimum net income for the {p}: {v} a month", eur(600, 4200, 200),
              "What net income do I need for the {p}?", "How much must I earn a month to get the {p}?"),
        fact("decision", "Decision on a {p} application: within {v}", days(1, 12),
              "How long does the decision on a {p} application take?",
              "When will I hear whether my {p} is approved?"),
    )),
)  # fmt: skip

_ACCOUNTS = (
    ProductSection("Prices", "table", (
        fact("monthly", "Monthly fee of the {p}", eur(1, 18, 1), "What is the monthly fee of the {p}?",
              "How much do I pay a month for the {p}?", "What does the {p} cost each month?"),
        fact("transfer", "Paper transfer from the {p}", eur(1, 6, 0.5), "What does a paper transfer cost with the {p}?",
              "I hand in a transfer form on paper. What is the charge on the {p}?"),
        fact("deposit", "Cash deposit to the {p} at the counter", eur(2, 9, 0.5),
              "How much is a cash deposit at the counter with the {p}?",
              "What am I charged for paying in cash at the counter with the {p}?"),
        fact("copy", "Copy of a {p} statement", eur(3, 14, 1), "What does a copy of a statement cost with the {p}?",
              "I need an old statement of my {p} again. What does it cost?"),
    ), ("Service", "Price")),
    ProductSection("Opening and closing", "list", (
        fact("age", "Minimum age for the {p}: {v}", years(7, 21), "What is the minimum age for the {p}?",
              "How old must I be to open the {p}?"),
        fact("opening", "Opening the {p} takes {v}", days(1, 10), "How long does it take to open the {p}?",
              "How many days until my {p} is open?"),
        fact("notice", "Notice before closing the {p}: {v}", days(5, 60, 5), "What is the notice period for closing the {p}?",
              "How long before closing the {p} must I give notice?"),
    )),
    ProductSection("Welcome bonus", "text", (
        fact("bonus", "New customers of the {p} get a bonus of {v}.", eur(20, 200, 10),
              "How much is the welcome bonus of the {p}?", "What bonus do new customers get with the {p}?"),
        fact("offer", "The {p} bonus offer ends on {v}.", _DATE, "When does the bonus offer for the {p} end?",
              "Until what date can I get the {p} bonus?"),
        fact("salary", "For the {p} bonus, a monthly salary of at least {v} must be paid in.", eur(400, 2800, 100),
              "What monthly salary must be paid in for the {p} bonus?"),
    )),
)  # fmt: skip

_SAVINGS = (
    ProductSection("Interest", "table", (
        fact("base", "Base rate of the {p}", pct(0.5, 2.4), "What is the base rate of the {p}?",
              "Which base interest rate does the {p} pay?", "What does the {p} pay as base rate?"),
        fact("bonus", "Bonus rate of the {p}", pct(2.5, 4.5), "What is the bonus rate of the {p}?",
              "How high is the bonus interest on the {p}?"),
        fact("early", "Deduction for early withdrawal from the {p}", pct(0.2, 1.9),
              "What is deducted for an early withdrawal from the {p}?",
              "I want my money out of the {p} early. What is deducted?"),
    ), ("Rate", "Per year")),
    ProductSection("Withdrawals", "list", (
        fact("notice", "Notice before a withdrawal from the {p}: {v}", days(7, 120, 7),
              "How much notice must I give before a withdrawal from the {p}?",
              "What is the notice period of the {p}?"),
        fact("free", "Amount without notice from the {p}: {v} a month", eur(500, 5000, 250),
              "How much can I withdraw from the {p} a month without notice?"),
        fact("payout", "Payout from the {p}: within {v}", days(1, 9), "How long does the payout from the {p} take?",
              "When is the money from my {p} paid out?"),
    )),
    ProductSection("Term", "text", (
        fact("term", "The rate of the {p} is guaranteed for {v}.", months(3, 48, 3),
              "For how long is the rate of the {p} guaranteed?", "How many months is the {p} rate fixed?"),
        fact("campaign", "The bonus rate of the {p} is offered until {v}.", _DATE,
              "Until when is the bonus rate of the {p} offered?", "On what date does the {p} bonus rate offer end?"),
    )),
)  # fmt: skip

_LOANS = (
    ProductSection("Interest by term", "table", (
        fact("short", "{p} up to 24 months", pct(2.9, 6.4), "What is the rate of the {p} up to 24 months?",
              "What interest do I pay on a {p} that runs for 24 months?"),
        fact("medium", "{p} from 25 to 60 months", pct(4.5, 8.4), "What is the rate of the {p} for 60 months?",
              "What interest do I pay on the {p} from 25 to 60 months?"),
        fact("long", "{p} over 60 months", pct(6.1, 10.9), "What is the rate of the {p} over 60 months?",
              "How high is the interest of the {p} for more than 60 months?"),
    ), ("Term", "Rate")),
    ProductSection("Amounts", "text", (
        fact("least", "The smallest {p} is {v}.", eur(500, 6000, 500), "What is the smallest amount of the {p}?",
              "How little can I borrow with the {p}?"),
        fact("most", "The largest {p} is {v}.", eur(10000, 120000, 5000), "What is the largest amount of the {p}?",
              "How much can I borrow at most with the {p}?", "What is the most that the {p} lends?"),
        fact("fee", "The arrangement fee of the {p} is {v}.", (pct(0.5, 3, 0.25), eur(40, 250, 10)),
              "What is the arrangement fee of the {p}?", "What does it cost to arrange the {p}?",
              form="{0} of the loan, at most {1}"),
    )),
    ProductSection("Repayment", "list", (
        fact("pause", "Payment breaks of the {p}: {v} a year", count(1, 6), "How many payment breaks a year does the {p} allow?",
              "How often a year can I pause payments on the {p}?"),
        fact("extra", "Extra repayment of the {p} without charge: {v} of the loan a year", pct(5, 50, 5),
              "What share of the {p} can I repay early each year without charge?",
              "How much extra can I repay on the {p} a year?"),
        fact("late", "Late payment on the {p}: {v}", eur(5, 35, 1), "What does a late payment on the {p} cost?",
              "I missed a {p} instalment. How much is the late fee?"),
    )),
)  # fmt: skip

_INSURANCE = (
    ProductSection("Cover", "table", (
        fact("damage", "Damage, {p}", eur(1000, 60000, 1000), "Up to which amount does the {p} cover damage?",
              "How much does the {p} pay for damage at most?"),
        fact("theft", "Theft, {p}", eur(500, 20000, 500), "Up to which amount does the {p} cover theft?",
              "My things were stolen. How much does the {p} pay?"),
        fact("legal", "Legal advice, {p}", eur(100, 3000, 100), "How much legal advice does the {p} cover?",
              "What does the {p} pay for legal advice?"),
    ), ("Event", "Paid up to")),
    ProductSection("Premium", "text", (
        fact("premium", "The premium of the {p} is {v} a month.", eur(3, 45, 1), "What is the monthly premium of the {p}?",
              "How much does the {p} cost a month?", "What do I pay each month for the {p}?"),
        fact("discount", "Paying the {p} once a year saves {v}.", pct(2, 15, 1),
              "How much do I save when I pay the {p} once a year?", "What is the discount for paying the {p} yearly?"),
        fact("excess", "The excess of the {p} is {v} a claim.", eur(25, 500, 25), "What is the excess of the {p}?",
              "How much of each claim do I pay myself with the {p}?"),
    )),
    ProductSection("Claims", "list", (
        fact("report", "Report a {p} claim within {v}", days(2, 30), "Within how many days must I report a {p} claim?",
              "How soon must a claim be reported to the {p}?"),
        fact("settle", "Settlement of a complete {p} claim: {v}", days(5, 45),
              "How long does the settlement of a {p} claim take?", "When is my {p} claim settled?"),
        fact("receipts", "The {p} needs receipts for items over {v}", eur(50, 400, 25),
              "From which amount does the {p} need receipts?"),
    )),
)  # fmt: skip

_TRANSFERS = (
    ProductSection("Charges", "table", (
        fact("online", "{p} ordered online", eur(0.5, 12, 0.5), "What does an online order of the {p} cost?",
              "How much is the {p} when I order it online?"),
        fact("branch", "{p} ordered in a branch", eur(3, 30, 1), "What does the {p} cost in a branch?",
              "I order the {p} at the counter. What is the charge?"),
        fact("trace", "Search for a {p}", eur(10, 60, 2), "What does a search for a payment cost with the {p}?",
              "My {p} never arrived. How much is a search?"),
        fact("recall", "Recall of a {p}", eur(5, 40, 1), "What does a recall of the {p} cost?",
              "I want my {p} back. What is charged for the recall?"),
    ), ("Service", "Charge")),
    ProductSection("Timing", "list", (
        fact("cutoff", "{p} orders are accepted until {v}", clock(11, 22), "Until what time are {p} orders accepted?",
              "What is the cut-off time for the {p}?", "How late in the day can I send the {p}?"),
        fact("arrival", "Money sent by {p} arrives within {v}", days(1, 9), "How long does the {p} take to arrive?",
              "In how many days does money sent by {p} arrive?"),
        fact("advance", "{p} orders can be placed {v} ahead", months(1, 24),
              "How far ahead can I place an order for the {p}?"),
    )),
    ProductSection("Changes and returns", "text", (
        fact("cancel", "A {p} order can be cancelled for {v}.", days(1, 28), "How long can I cancel the {p}?",
              "For how many days can the {p} be cancelled?"),
        fact("refund", "A returned {p} is credited within {v}.", days(2, 21), "When is a returned {p} credited?"),
        fact("tariff", "The charges of the {p} are valid until {v}.", _DATE, "Until when are the charges of the {p} valid?",
              "On what date do the charges of the {p} end?"),
    )),
)  # fmt: skip

LINES = (
    ProductLine("cards", "Everyday banking", "Card",
         ("Cobalt", "Cobalt Plus", "Ember", "Lumen", "Nimbus", "Onyx", "Pebble", "Raven", "Saffron"), _CARDS,
         {"Onyx": "premium", "Raven": "business"}),
    ProductLine("accounts", "Everyday banking", "Account",
         ("Willow", "Willow Plus", "Granite", "Juniper", "Maple", "Quartz", "Tundra", "Velvet", "Zephyr"), _ACCOUNTS,
         {"Velvet": "premium"}),
    ProductLine("savings", "Saving and borrowing", "Saver",
         ("Acorn", "Acorn Plus", "Bramble", "Cedar", "Dahlia", "Fjord", "Ginger", "Heron", "Indigo"), _SAVINGS,
         {"Indigo": "premium"}),
    ProductLine("loans", "Saving and borrowing", "Loan",
         ("Jasper", "Jasper Plus", "Kestrel", "Linden", "Nectar", "Orchid", "Poppy", "Quill", "Robin"), _LOANS,
         {"Quill": "business"}),
    ProductLine("insurance", "Insurance", "Insurance",
         ("Sable", "Sable Plus", "Thistle", "Ursa", "Violet", "Wren", "Yarrow", "Zinnia", "Amber"), _INSURANCE, {}),
    ProductLine("transfers", "Everyday banking", "Transfer",
         ("Birch", "Birch Plus", "Clover", "Drift", "Echo", "Flint", "Haven", "Tern"), _TRANSFERS,
         {"Flint": "business"}),
)  # fmt: skip
