"""The command line in a checkout: `python scripts/command_line.py train ...` is `hf-vanilla-transformer train ...`."""

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main()
