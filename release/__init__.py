"""What makes a release, and refuses one that is not ready.

- `smoke`: tries an installed emberq with nothing but the installation.
- `wheels`: builds the compiled and the pure wheel, and tries each in an empty environment (`make wheel`).
- `cut`: version, changelog and tag in one step (`make release`).
"""
