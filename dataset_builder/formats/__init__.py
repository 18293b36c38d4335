"""The forms of a data set on disk: Parquet shards, files, the released form, `load_dataset`."""
