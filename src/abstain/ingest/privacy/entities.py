"""Which personal data can be removed, by Presidio's names, and where in a text each may stand.

Notes:

* The names are a table here, although Presidio knows them too: Presidio takes seconds to import, and a misspelt name
  must be reported at once. A test compares the table with the installed Presidio.
* Each name has the best score that its recognizer can give. A requested entity that can never reach
  `privacy.min_score` would silently stay, so it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from abstain.core.errors import AbstainError
from abstain.core.suggest import did_you_mean
from abstain.ingest.privacy.pieces import Pieces, cards, emails, hinted, ibans, windows

PATTERNS: dict[str, tuple[str, float]] = {
    "ABA_ROUTING_NUMBER": ("AbaRoutingRecognizer", 1.0),
    "AU_ABN": ("AuAbnRecognizer", 1.0),
    "AU_ACN": ("AuAcnRecognizer", 1.0),
    "AU_MEDICARE": ("AuMedicareRecognizer", 1.0),
    "AU_TFN": ("AuTfnRecognizer", 1.0),
    "CREDIT_CARD": ("CreditCardRecognizer", 1.0),
    "CRYPTO": ("CryptoRecognizer", 1.0),
    "DATE_TIME": ("DateRecognizer", 0.8),
    "EMAIL_ADDRESS": ("EmailRecognizer", 1.0),
    "ES_NIE": ("EsNieRecognizer", 1.0),
    "ES_NIF": ("EsNifRecognizer", 1.0),
    "FI_PERSONAL_IDENTITY_CODE": ("FiPersonalIdentityCodeRecognizer", 1.0),
    "IBAN_CODE": ("IbanRecognizer", 1.0),
    "IN_AADHAAR": ("InAadhaarRecognizer", 1.0),
    "IN_GSTIN": ("InGstinRecognizer", 1.0),
    "IN_PAN": ("InPanRecognizer", 0.5),
    "IN_PASSPORT": ("InPassportRecognizer", 0.1),
    "IN_VEHICLE_REGISTRATION": ("InVehicleRegistrationRecognizer", 1.0),
    "IN_VOTER": ("InVoterRecognizer", 0.4),
    "IP_ADDRESS": ("IpRecognizer", 0.6),
    "IT_DRIVER_LICENSE": ("ItDriverLicenseRecognizer", 0.2),
    "IT_FISCAL_CODE": ("ItFiscalCodeRecognizer", 1.0),
    "IT_IDENTITY_CARD": ("ItIdentityCardRecognizer", 0.01),
    "IT_PASSPORT": ("ItPassportRecognizer", 0.01),
    "IT_VAT_CODE": ("ItVatCodeRecognizer", 1.0),
    "KR_BRN": ("KrBrnRecognizer", 1.0),
    "KR_DRIVER_LICENSE": ("KrDriverLicenseRecognizer", 1.0),
    "KR_FRN": ("KrFrnRecognizer", 1.0),
    "KR_PASSPORT": ("KrPassportRecognizer", 0.1),
    "KR_RRN": ("KrRrnRecognizer", 1.0),
    "MAC_ADDRESS": ("MacAddressRecognizer", 0.6),
    "MEDICAL_LICENSE": ("MedicalLicenseRecognizer", 1.0),
    "NG_NIN": ("NgNinRecognizer", 1.0),
    "NG_VEHICLE_REGISTRATION": ("NgVehicleRegistrationRecognizer", 0.5),
    "PHONE_NUMBER": ("PhoneRecognizer", 0.4),
    "PL_PESEL": ("PlPeselRecognizer", 1.0),
    "SG_NRIC_FIN": ("SgFinRecognizer", 0.5),
    "SG_UEN": ("SgUenRecognizer", 1.0),
    "TH_TNIN": ("ThTninRecognizer", 1.0),
    "UK_NHS": ("NhsRecognizer", 1.0),
    "UK_NINO": ("UkNinoRecognizer", 0.5),
    "UK_PASSPORT": ("UkPassportRecognizer", 0.1),
    "UK_POSTCODE": ("UkPostcodeRecognizer", 0.1),
    "UK_VEHICLE_REGISTRATION": ("UkVehicleRegistrationRecognizer", 1.0),
    "URL": ("UrlRecognizer", 0.6),
    "US_BANK_NUMBER": ("UsBankRecognizer", 0.05),
    "US_DRIVER_LICENSE": ("UsLicenseRecognizer", 0.3),
    "US_ITIN": ("UsItinRecognizer", 0.5),
    "US_MBI": ("UsMbiRecognizer", 0.5),
    "US_NPI": ("UsNpiRecognizer", 1.0),
    "US_PASSPORT": ("UsPassportRecognizer", 0.1),
    "US_SSN": ("UsSsnRecognizer", 0.5),
}
"""Found by a pattern: the class in `presidio_analyzer.predefined_recognizers`, and its best score."""

NAMES: dict[str, float] = {"LOCATION": 0.85, "NRP": 0.85, "ORGANIZATION": 0.85, "PERSON": 0.85}
"""Found by a spaCy pipeline, which gives no scores: the score that Presidio gives all of them."""

_SSN = hinted(r"\d{3}[- .]?\d{2}[- .]?\d{4}")
_INTERNATIONAL_PHONE = hinted(r"[+\uff0b]\W{0,8}\d")
_NATIONAL_PHONE = hinted(r"\d(?:\W{0,4}\d){6}")


RARE = frozenset({"CREDIT_CARD", "EMAIL_ADDRESS", "IBAN_CODE", "PHONE_NUMBER", "US_SSN"})
"""Entities that are possible only where `pieces.may_hold_any` is true; of phone numbers, the international ones."""


def require_known(names: Iterable[str], min_score: float) -> None:
    """Raise `AbstainError` for a name that is unknown, or that could never be found with `min_score`."""
    valid = {**{name: best for name, (_, best) in PATTERNS.items()}, **NAMES}
    for name in names:
        if name not in valid:
            hint = did_you_mean(name.upper(), sorted(valid), "valid entities", cutoff=0.5)
            raise AbstainError(f"privacy.redact: unknown entity '{name}': {hint}")
        if valid[name] < min_score:
            raise AbstainError(
                f"privacy.redact: {name} is never surer than {valid[name]:g}, so privacy.min_score = {min_score:g} "
                f"would leave every one in the text: lower the score or take {name} out"
            )


def pieces_of(name: str, *, national_phones: bool) -> Pieces:
    """Where in a text the recognizer of `name` has to look."""
    match name:
        case "CREDIT_CARD":
            return cards
        case "EMAIL_ADDRESS":
            return emails
        case "IBAN_CODE":
            return ibans
        case "PHONE_NUMBER":
            return _NATIONAL_PHONE if national_phones else _INTERNATIONAL_PHONE
        case "US_SSN":
            return _SSN
        case _:
            return windows
