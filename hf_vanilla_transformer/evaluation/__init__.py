"""Weights in, metrics and plots out."""

# Metrics of translations, in percent, by the name that `score_translations`, logs and files of results give them.
METRICS = ("bleu", "chrf")
# Metrics of target tokens under teacher forcing: nats per token, and percent. They need no translation.
TOKEN_METRICS = ("loss", "perplexity", "token_accuracy")
