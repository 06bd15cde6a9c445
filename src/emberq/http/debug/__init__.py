"""Looking into a running daemon by HTTP: where it stands, where its time goes, where its memory goes."""
