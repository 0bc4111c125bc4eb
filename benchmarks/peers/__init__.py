"""Other implementations of the same model, each as a module that takes a batch and returns its loss.

Every module is built from a `VanillaTransformerConfig` and called with `input_ids` and `attention_mask`, both
`(batch, source)`, and `labels`, `(batch, target)`, -100 where there is none.
"""
