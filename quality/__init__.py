"""Tools that judge the tests.

- `twin`: which test files belong to which module.
- `mutate`: changes a module in small ways, and sees which changes its tests notice (`make mutate`).
- `blocks`: notes which blocks of emberq's code run.
- `coverage_report`: the coverage of each package by blocks, with its floor (`make coverage`).
"""
