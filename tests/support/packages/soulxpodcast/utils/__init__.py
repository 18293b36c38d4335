"""Of the repository: seeds, the parser of scripts, the preparation of inputs."""
