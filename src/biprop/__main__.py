"""Run the command line as `python -m biprop`; the commands are in `biprop.cli`."""

from biprop.cli import main

if __name__ == "__main__":
    main()
