"""HTML and XML: sentences out of documents, and translations with their tags back into them."""
