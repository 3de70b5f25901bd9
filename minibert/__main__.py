"""`python -m minibert`: the command line where its script is not on the path."""

from minibert.cli.main import main

if __name__ == "__main__":
    main()
