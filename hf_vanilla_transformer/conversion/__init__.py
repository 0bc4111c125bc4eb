"""Mappings of this model's weights to other systems, one module per system.

`hf_marian` fills transformers' `MarianMTModel`, `torch_nn` names the weights as `torch.nn.Transformer` does, and
`ctranslate2` writes a folder for CTranslate2. The benchmarks and the parity tests use them. None of them writes a
tokenizer.
"""
