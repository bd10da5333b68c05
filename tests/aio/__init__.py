"""Programs written for temporalio, run here with their imports changed."""
