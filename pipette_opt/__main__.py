"""``python -m pipette_opt``."""

from pipette_opt.cli import main

if __name__ == "__main__":
    main()
