"""Run a verb from a checkout: `python scripts/run.py train ...` does what `hf-vanilla-transformer train ...` does."""

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main()
