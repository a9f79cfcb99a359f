"""`python -m benchmarks.sample`: write the files that the project ships, `handbook/` and the two exports, once more.

Their rows are those of `data.dvc`: after a change, run `python -m abstain.sample data` and `dvc add data`, copy
`data.dvc` to `src/abstain/sample/data.yaml`, and run `python -m abstain.sample.shipped`.
"""

from abstain.sample.files import FOLDER
from benchmarks.sample.write import write_sample

if __name__ == "__main__":
    write_sample(FOLDER)
