"""Turn exports of other tools into rows; a mapping (`mapping.py`) says which scores are thumbs or criteria of a review.

An export is one or more files of one tool, read together, because scores and the answers that they rate are often in
different files. `formats.py` holds what the tools' schemas define, `export_rows.py` makes the rows.
"""
