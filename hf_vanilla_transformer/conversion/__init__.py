"""This model's weights in other systems, and theirs in this model, one module per system.

`hf_marian` converts from and to transformers' `MarianMTModel`, `torch_nn` names the weights as `torch.nn.Transformer`
does, and `ctranslate2` writes a folder for CTranslate2; the last two carry no tokenizer, and serve benchmarks and parity
tests. `parity` and `folder` are what imports share.
"""
