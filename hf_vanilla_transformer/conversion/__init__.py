"""This model's weights in other systems, and theirs in this model, one module per system.

`marian` converts models that Marian trained, and `hf_marian` from and to transformers' `MarianMTModel`. `torch_nn`
names the weights as `torch.nn.Transformer` does, and `ctranslate2` writes a folder for CTranslate2; these two carry no
tokenizer, and serve benchmarks and parity tests. `parity` and `folder` are what imports share.
"""
