package digits_test

import (
	"context"
	"math"
	"testing"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/examples/digits"
)

// TestLoad checks the number of images, and the shifted copies.
func TestLoad(t *testing.T) {
	train, test, err := digits.Load[float32]()
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 9*1438 || test.Len() != 359 {
		t.Fatalf("%d training and %d test images, want %d and 359", train.Len(), test.Len(), 9*1438)
	}
	// The fifth copy of an image is the unmoved one, the first is moved up and left.
	upright, moved := train.Image(4*1438), train.Image(0)
	if train.Label[0] != train.Label[4*1438] {
		t.Errorf("copies of one image have the labels %d and %d", train.Label[0],
			train.Label[4*1438])
	}
	if upright[2] != 5.0/16 || moved[1] != upright[digits.Side+2] || moved[digits.Pixels-1] != 0 {
		t.Errorf("shift: pixels %v and %v do not belong together", upright, moved)
	}
}

// TestGradient compares the gradient with central differences.
func TestGradient(t *testing.T) {
	train, _, err := digits.Load[float64]()
	if err != nil {
		t.Fatal(err)
	}
	model, images := digits.NewModel[float64](3), []int64{0, 17, 5000, 12000}
	grad, scratch := make([]float64, digits.Params), make([]float64, digits.Params)
	model.Gradient(grad, train, images)
	const step = 1e-5
	for i := 0; i < digits.Params; i += 41 {
		w := model.Weights[i]
		model.Weights[i] = w + step
		up := model.Gradient(scratch, train, images)
		model.Weights[i] = w - step
		down := model.Gradient(scratch, train, images)
		model.Weights[i] = w
		if want := (up - down) / (2 * step); math.Abs(grad[i]-want) > 1e-6 {
			t.Errorf("gradient of parameter %d is %g, by differences %g", i, grad[i], want)
		}
	}
}

// TestTrainAlone trains as one worker, and checks the accuracy.
func TestTrainAlone(t *testing.T) {
	job, err := client.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer job.Close()
	config := digits.Default()
	var last digits.Progress
	losses, err := digits.Train[float32](context.Background(), job, config,
		func(p digits.Progress) error {
			last = p
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if len(losses) != config.Steps || last.Step != config.Steps || last.Accuracy < 0.96 {
		t.Errorf("%d losses, ended with %+v; want %d steps and an accuracy of 0.96", len(losses),
			last, config.Steps)
	}
}
