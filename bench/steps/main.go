// Command steps measures what it costs, while nothing happens, that a job can lose workers.
package main

import (
	"os"

	"github.com/shoal-ml/shoal/internal/cli"
)

func main() {
	root := newCommand()
	root.AddCommand(newWorkerCommand())
	os.Exit(cli.Main(root))
}
