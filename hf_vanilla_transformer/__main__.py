"""`python -m hf_vanilla_transformer VERB ...`: the command line, see [`hf_vanilla_transformer.cli`]."""

from .cli.main import main


if __name__ == "__main__":
    main()
