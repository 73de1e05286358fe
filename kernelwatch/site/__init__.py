"""The pages of a published history: the data files that they read, and the pages themselves."""
