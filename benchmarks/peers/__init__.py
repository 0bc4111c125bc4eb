"""Other implementations of the Transformer.

For training, each is a module that is built from a `VanillaTransformerConfig`, takes a batch and returns its loss. A
batch has `input_ids` and `attention_mask`, both of shape (batch, source), and `labels` of shape (batch, target), -100
at padding.
"""
