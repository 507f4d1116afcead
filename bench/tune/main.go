// Command tune measures how hosts exchange tensors best, by every candidate that a job can choose.
package main

import (
	"os"

	"github.com/shoal-ml/shoal/internal/cli"
)

func main() {
	root := newCommand()
	os.Exit(cli.Main(root))
}
