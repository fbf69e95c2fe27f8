"""What the tests stand on: real nodes, a real site, a real FTP server, commands as processes; no mocks."""
