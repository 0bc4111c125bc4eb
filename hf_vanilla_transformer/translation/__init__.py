"""Text in, text out: texts are split into sentences, sentences are batched, and translations are joined again."""
