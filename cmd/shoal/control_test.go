package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/shoal-ml/shoal/client"
)

// runTrainer is a worker that trains a sum in steps: as many epochs as its argument says, without
// end when there is none, with a batch that BATCH_RANGE opens, such as 8,64, and checkpoints in the
// folder CHECKPOINTS. TestMain runs it in a process of its own.
func runTrainer() {
	if err := trainSum(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// trainSum joins the job and trains until its data or the job ends. It runs in the process of the
// worker trainer, whose argument it reads.
func trainSum() error {
	epochs := 0
	if len(os.Args) > 1 {
		var err error
		if epochs, err = strconv.Atoi(os.Args[1]); err != nil {
			return err
		}
	}
	ctx := context.Background()
	j, err := client.Join(ctx)
	if err != nil {
		return err
	}
	data := client.Data{Samples: 512, Batch: 16, Epochs: epochs, Seed: 1}
	if text := os.Getenv("BATCH_RANGE"); text != "" {
		if _, err := fmt.Sscanf(text, "%d,%d", &data.BatchRange[0],
			&data.BatchRange[1]); err != nil {
			return err
		}
	}
	p, g := make([]float64, 8), make([]float64, 8)
	t, err := client.Train(j, data, client.StateOf("p", p))
	if err != nil {
		return err
	}
	if folder := os.Getenv("CHECKPOINTS"); folder != "" {
		if err := t.Checkpoint(client.Checkpoint{Folder: folder, Every: time.Hour}); err != nil {
			return err
		}
	}
	work := time.NewTicker(time.Millisecond) // a step takes a while, and leaves the cores to others
	defer work.Stop()
	fmt.Println("begins")
	for t.Next(ctx) {
		<-work.C
		for i := range g {
			g[i] = float64(t.Samples()[0] % 7)
		}
		if err := client.Commit(ctx, t, g); err != nil {
			return err
		}
		for i := range p {
			p[i] -= 0.01 * g[i]
		}
		if t.Step()%20 == 0 {
			if err := j.Report(
				map[string]float64{"step": float64(t.Step()), "loss": 0.25}); err != nil {
				return err
			}
		}
	}
	fmt.Println("ends")
	if t.Err() != nil {
		return t.Err()
	}
	return j.Close()
}
