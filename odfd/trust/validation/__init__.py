"""Work done again and compared: re-execution of transforms, observation of sources, re-checks of evidence."""
