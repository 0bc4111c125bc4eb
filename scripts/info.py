"""Print versions, the machine and its fast paths: `hf-vanilla-transformer info`, from a checkout."""

from hf_vanilla_transformer.cli.info import main


if __name__ == "__main__":
    main()
