"""What a folder of files holds, guessed by the names of the files and of their columns."""
