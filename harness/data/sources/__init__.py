"""Where raw data comes from: one module per source, each streaming into a `harness.data.prepare.DatasetWriter`.

repository    documents, lines, sparse_text, byte_words, pattern   files of the Extreme Classification Repository
jsonl         importing, and the readers above                     a user's folder
pydocs        docwalk, docnames, seealso, linked                   See Also sections of installed libraries
debian        apt, linked                                          package relations
synthetic                                                          generated, any size
"""
