"""Reports: tables, tests of differences, figures and pages from recorded runs.

    run folders, Parquet files -> results -> rows -> published tables, comparison, claims -> tables, templates -> site

Everything is a pure function of results: nothing is run, MLflow is not asked, and no torch is imported.
"""
