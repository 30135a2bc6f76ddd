from specdec_cli.cli.app import main

main()
