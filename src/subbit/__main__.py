"""`python -m subbit` is the `subbit` command."""

from subbit.cli import main

if __name__ == "__main__":
    main()
