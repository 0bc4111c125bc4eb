"""Train on the built-in number corpus, evaluate and translate: `hf-vanilla-transformer demo`, from a checkout."""

from hf_vanilla_transformer.cli.demo import main


if __name__ == "__main__":
    main()
