"""What `import croc` offers: thin functions over what the command line calls, one a file."""
