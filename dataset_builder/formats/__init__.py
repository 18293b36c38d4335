"""The forms in which a data set lies on disk: Parquet shards, files, the released form, `load_dataset`."""
