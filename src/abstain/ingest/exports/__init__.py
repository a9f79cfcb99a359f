"""Exports of other tools as rows: which of their scores is a thumb or a verdict is said by a mapping (`mapping.py`).

An export is one or more files of one tool, read together: scores and the answers that they judge are often in files of
their own. `formats.py` has what the tools' schemas fix, `rows.py` makes the rows.
"""
