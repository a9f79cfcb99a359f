"""The codes of errors, rejections and alarms: one for each kind of cause, with its remedy.

A code is stable: it is never renumbered or reused for another cause. The page docs/codes.md is generated from this
table.
"""

from __future__ import annotations

from enum import StrEnum

AREAS = {
    "1": "Data",
    "2": "Base model and features",
    "3": "Learning",
    "4": "Release",
    "5": "Operation",
    "6": "Configuration and use",
    "7": "Monitoring",
}
"""First digit of a code -> area of its cause."""


class Code(StrEnum):
    """A kind of cause; the value is the code that users see.

    Attributes:
        cause: The cause in one sentence.
        remedy: What the user can do.
    """

    cause: str
    remedy: str

    def __new__(cls, value: str, cause: str = "", remedy: str = "") -> Code:
        # `Code("A101")` looks a member up with the value alone: hence the defaults.
        member = str.__new__(cls, value)
        member._value_, member.cause, member.remedy = value, cause, remedy
        return member

    NOT_READABLE = (
        "A101",
        "A file, folder, object store or database cannot be found, reached or read.",
        "Check its name, its permissions, the credentials and the network, and run the command again.",
    )
    WRONG_FORMAT = (
        "A102",
        "A file is empty, damaged, or of another format than its name or the command requires.",
        "Write the file again in the format that the message names.",
    )
    INVALID_ROW = (
        "A103",
        "A row or document breaks its contract: a field is missing, unknown or of the wrong type, or cannot be parsed.",
        "Correct the field at the source and ingest that row again.",
    )
    FAILED_CHECK = (
        "A104",
        "A row contradicts another row, or lies outside a limit of `validation` in params.yaml.",
        "Correct the row at its source, or change the limit and run `abstain quarantine retry ID`. If the stored row "
        "is the wrong one: `abstain ingest FILE --replace REASON`.",
    )
    BATCH_REJECTED = (
        "A105",
        "More rows of a batch were rejected than validation.max_failed_fraction allows; this blocks the retrain.",
        "Correct the rows and ingest again, or decide with `abstain quarantine retry ID` or `discard ID`.",
    )
    ERASED_USER = (
        "A106",
        "A row is from a user whose erasure was requested.",
        "Stop the source from sending rows of this user; the row itself was not kept.",
    )
    LOW_QUALITY = (
        "A107",
        "The training table exceeds a limit of `quality` in params.yaml, such as leakage or contradicting labels.",
        "Collect the reviews or correct the groups that the message names; metrics are less reliable until then.",
    )
    DRIFT = (
        "A108",
        "The newest batch differs from the earlier ones in lengths or languages.",
        "Check whether the source or the users have changed; if so, review answers of the newest split.",
    )
    NO_ROWS = (
        "A109",
        "There is no row to work on: nothing was ingested yet, or the selection leaves none.",
        "Run `abstain ingest FILE...` first, or select more rows.",
    )
    DAMAGED_DATA = (
        "A110",
        "A file of data/ or registry.json is missing or differs from what was recorded.",
        "Restore data/ with `dvc checkout` or `dvc pull`, registry.json with git.",
    )
    TOO_LARGE = (
        "A111",
        "A file, row or document exceeds a limit of size.",
        "Divide or shorten it: the message names the limit, and docs/sources.md lists all.",
    )
    CONTRADICTS_OTHERS = (
        "A112",
        "One user's thumbs or one reviewer's reviews contradict those of the others beyond chance.",
        "Have others review these answers again (with `labels.conflicts: latest` that decides). Erase a user who does "
        "harm with `abstain erase-user`.",
    )
    NO_MODEL = (
        "A201",
        "A model cannot be found, or its files cannot be loaded.",
        "Check the model's name and folder, or download it again.",
    )
    MODEL_UNSUITABLE = (
        "A202",
        "The model, its tokenizer or the prompt layout lacks something that the request needs.",
        "Choose another model, layer or layout in params.yaml.",
    )
    TOO_LONG = (
        "A203",
        "A text is longer than the model reads or may write at once.",
        "Retrieve fewer or shorter chunks, leave the answer out, or choose a model with a longer context length.",
    )
    NOT_FINITE = (
        "A204",
        "A state, feature or score is nan or infinite.",
        "Set ABSTAIN_DTYPE=float32 and compute it again.",
    )
    VERSION_MISMATCH = (
        "A205",
        "A file was made with another version of the model, the prompt layout or this project.",
        "Use the version that the message names, or run `abstain retrain`.",
    )
    NOTHING_TO_SCORE = (
        "A206",
        "There is no context or no answer to score.",
        "Send the retrieved chunks, or set --no-context; treat the decision as abstain.",
    )
    STATES_MISMATCH = (
        "A207",
        "Hidden states or log-probabilities of an engine are not those that the live scorer reads.",
        "Change what the message names, or leave them out: the base model then reads the answer itself.",
    )
    UNFAMILIAR = (
        "A208",
        "The base model does not know what the question names.",
        "Add a document on it, grant its entitlement, or change ABSTAIN_SERVE_FAMILIARITY.",
    )
    LISTED_REFUSAL = (
        "A209",
        "The answer is one of `labels.refusals` and nothing else, so it is shown whatever its confidence.",
        "Take the text out of `labels.refusals` if users must not read it.",
    )
    ONLY_REASONING = (
        "A210",
        "An answer has reasoning that does not end, or nothing but reasoning, so that it is withheld.",
        "Let the model write more tokens, or change `labels.reasoning` if what is marked is the answer.",
    )
    TOO_FEW_LABELS = (
        "A301",
        "There are too few labelled answers of some kind, split or group.",
        "Review more answers of that kind, ingest them, and run `abstain retrain`.",
    )
    NO_THRESHOLD = (
        "A302",
        "No threshold reaches threshold.target with the required confidence.",
        "Review more answers, relax the target, or set threshold.on_infeasible to heuristic.",
    )
    NOT_TRAINABLE = (
        "A303",
        "Training finds nothing to learn or diverges.",
        "Ingest answers that differ more, or change the parameter that the message names.",
    )
    NOT_BETTER = (
        "A401",
        "The candidate is not shown to be better than the version in production or a baseline.",
        "Keep the version in production, and retrain with more reviews.",
    )
    TARGET_MISSED = (
        "A402",
        "The answers that the candidate shows on the hold-out or in a slice are correct less often than guaranteed.",
        "Review more answers there, and retrain.",
    )
    NEW_HOLDOUT = (
        "A403",
        "The candidate and the version in production cannot be compared on the same hold-out and base model.",
        "If the change is intended, run `abstain promote --accept-new-holdout REASON`.",
    )
    LIMIT_EXCEEDED = (
        "A404",
        "The candidate's calibration error or latency exceeds its limit of `promotion` in params.yaml.",
        "Change calibration.method, serve.scorer or the base model, measure on an idle machine, or change the limit.",
    )
    EXPORT_DIFFERS = (
        "A405",
        "An exported ONNX file computes other values than the model that it was made from.",
        "Do not use the file; export it again with the packages of requirements.lock.",
    )
    ERASED_IN_PRODUCTION = (
        "A406",
        "Production was trained on rows erased or corrected since, and the candidate without them is rejected.",
        "Decide: `abstain promote --accept-erasure REASON` or `--keep-tainted REASON`, or `abstain rollback`.",
    )
    NO_VERSION = (
        "A407",
        "There is no version or candidate in the state that the command needs.",
        "Run `abstain status` to see the versions, and `abstain retrain` to make one.",
    )
    NO_PACKAGE = (
        "A501",
        "A program or Python package is not installed.",
        "Install what the message names.",
    )
    NOT_WRITABLE = (
        "A502",
        "A file or folder cannot be written: it exists already, its owner is another user, or no space is left.",
        "Name another place, free space, or change the permissions.",
    )
    NO_SERVICE = (
        "A503",
        "A server or port that the command needs does not start or does not answer.",
        "Read its log, start it, or correct its address or port.",
    )
    PROCESS_DIED = (
        "A504",
        "A process was killed or ended by an unexpected error, so its run has no result.",
        "Read its log; if memory ran out, set a lower ABSTAIN_BATCH_TOKENS. Report an unexpected error.",
    )
    NOT_PUBLISHED = (
        "A505",
        "A run ended before it published its result: it was stopped, or another run pushed first.",
        "Run the same command again; finished steps are not repeated.",
    )
    NO_CHECKOUT = (
        "A506",
        "The current folder is not a clone of the project, or has uncommitted changes.",
        "Run the command in a clone, and commit or stash the changes.",
    )
    BAD_ARTIFACT = (
        "A507",
        "A file that a stage, a cache or a bundle contains is missing, damaged or inconsistent with the others.",
        "Run `abstain retrain`, or delete the file and fetch the bundle again.",
    )
    FAILED_STEP = (
        "A508",
        "A command or a cell of an experiment failed.",
        "Correct the cause that the message quotes, and run the command again.",
    )
    BUSY = (
        "A509",
        "A server has more requests than it can queue.",
        "Ask again after the seconds that Retry-After names, or start another server.",
    )
    NO_ACCESS = (
        "A510",
        "A request has no valid API key, its key lacks the role, or it comes from a page of another site.",
        "Send `Authorization: Bearer KEY`; `abstain key` makes one with the roles that are needed.",
    )
    ID_IN_USE = (
        "A511",
        "An id was used before, with another content, or belongs to the gate's page.",
        "Give each answer and each feedback an id of its own; a repeated request must be equal to the first.",
    )
    TOO_MANY_TRIES = (
        "A512",
        "A conversation had as many answers to one question within an hour as its limit allows.",
        "Let a person answer, or wait an hour; the setting ABSTAIN_SERVE_CALLER__MAX_TRIES changes the limit.",
    )
    BAD_SETTING = (
        "A601",
        "A key or value in a YAML file, or an environment variable, is missing, unknown or invalid.",
        "Write one that the message names, or see docs/reference for parameters and settings.",
    )
    UNKNOWN_NAME = (
        "A602",
        "The name is unknown.",
        "Choose one of the names that the message lists.",
    )
    USAGE = (
        "A603",
        "A command was called with wrong or contradictory arguments.",
        "See `abstain COMMAND --help`.",
    )
    GUARANTEE_VIOLATED = (
        "A701",
        "Reviews show that the answers that the live version shows miss its target.",
        "Run `abstain rollback`, or review new answers and run `abstain retrain`.",
    )
    CALIBRATION_OFF = (
        "A702",
        "The probabilities of the live version differ from how often reviewers found its answers correct.",
        "Run `abstain retrain`, which calibrates on the newest reviews; until then trust no expected precision.",
    )
    INPUT_DRIFT = (
        "A703",
        "Questions, answers or contexts differ from those before under the same version.",
        "Look at the examples; if the knowledge base or the users changed, have such answers reviewed and retrain.",
    )
    STATE_DRIFT = (
        "A704",
        "The hidden states that the scorer reads differ from those before under the same version.",
        "Check the base model, its precision and the engine; if they are the same, have the examples reviewed.",
    )
    NEW_TOPICS = (
        "A705",
        "More questions than before are unlike any question before under the same version.",
        "Have the examples reviewed, add what the knowledge base lacks, and run `abstain retrain`.",
    )
    UNKNOWN_CHUNKS = (
        "A706",
        "Answers use chunks that are not in the knowledge base.",
        "Ingest the knowledge base that the assistant reads: add it to sources.yaml, or run `abstain ingest FOLDER`.",
    )
    MODEL_CHANGED = (
        "A707",
        "Another base model or prompt layout is in use than before under the same version.",
        "Restore the previous model or layout, or collect reviews of the new one's answers and run `abstain retrain`.",
    )
    TOO_MANY_UNAVAILABLE = (
        "A708",
        "The gate could give no decision on too many answers.",
        "Look up the codes that the alarm names with `abstain explain CODE`, and remove their cause.",
    )
    COVERAGE_CHANGED = (
        "A709",
        "The share of answers that are shown differs from that before under the same version.",
        "Compare the products and the drift of the same window; what changed there is the cause.",
    )
    FEED_SILENT = (
        "A710",
        "No decisions, or no feedback, came for longer than in any earlier pause.",
        "Check that the assistant asks the gate, and that thumbs and reviews are posted to it.",
    )
