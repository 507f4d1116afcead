// A worker that trains on handwritten digits with the Go client; the loop itself is in ../train.go.
//
//	$ go build -o bin/digits ./examples/digits/worker
//	$ shoal run -n 4 -- bin/digits
//	[0] step  102  loss 1.0644  accuracy 94.4 %
//	[0] step  204  loss 0.3618  accuracy 94.7 %
//	...
//	[0] 4 workers trained 2000 steps: accuracy 98.6 %
//
// Without the launcher it is a job of one, which prints the same losses.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/examples/digits"
)

func main() {
	if err := train(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// train joins the job and trains as one of its workers. It blocks until the training ends, and
// leaves the job.
func train(ctx context.Context) error {
	job, err := client.Join(ctx)
	if err != nil {
		return err
	}
	defer job.Close()
	config := digits.Default()
	_, err = digits.Train[float32](ctx, job, config, func(p digits.Progress) error {
		fmt.Printf("step %4d  loss %.4f  accuracy %.1f %%\n", p.Step, p.Loss, 100*p.Accuracy)
		if p.Step == config.Steps {
			fmt.Printf("%d workers trained %d steps: accuracy %.1f %%\n", job.Size(), p.Step,
				100*p.Accuracy)
		}
		return job.Report(p.Metrics())
	})
	return err
}
