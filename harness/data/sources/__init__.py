"""Sources of raw data: one module each, which writes a dataset with a `harness.data.prepare.DatasetWriter`.

repository    files of the Extreme Classification Repository (label files: sparse_text)
jsonl         a user's folder of JSON lines, and its import
pydocs        See Also sections of installed libraries (their objects: docwalk)
debian        package relations of a Debian release
wordnet       related synsets of WordNet
debtags       tags of Debian packages
manpages      SEE ALSO sections of manual pages (their text: roff)
synthetic     generated, any size

`lines` reads text files in chunks for the first two; `apt` fetches what comes from Debian; `links` makes rows, labels
and filter pairs of items that link to each other.
"""
