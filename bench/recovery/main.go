// Command recovery measures what it costs a job to lose a worker and to gain one.
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
