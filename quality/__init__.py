"""Tools that judge the tests.

- `twin`: which test files belong to which module.
- `mutate`: changes a module in small ways, and sees which changes its tests notice (`make mutate`).
- `coverage_report`: the coverage of each package, with its floor.
"""
