// Package deployment is a plan as people keep it and jobs take it: a mesh, and what was predicted
// and proved of it. docs/formats/deployment.md is the format. It is pure.
package deployment

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/state/layout"
)

const (
	// MostWork bounds what goes into a proof, in about seconds of a processor: a day.
	MostWork = 86_400
	// Version stands in every Deployment.
	Version = "deployment/1"
	// MaxBytes bounds what Parse reads.
	MaxBytes = 1 << 20
)

// A Deployment is a plan.
type Deployment struct {
	Shoal string `json:"shoal"` // always Version
	// Mesh is as layout.ParseMesh reads it; "" = the stages are no mesh, as Runs says.
	Mesh    string `json:"mesh"`
	Batch   int    `json:"batch"` // samples of a step
	Model   string `json:"model"` // Hash of the text of the model
	Cluster string `json:"cluster"`
	// Predicted is what a step takes, and Certificate what no plan can take less than.
	Predicted   Prediction  `json:"predicted"`
	Stages      []Stage     `json:"stages"`
	Certificate Certificate `json:"certificate"`
	Runs        Runs        `json:"runs"`
	// Micro is the samples of a micro-batch where the plan is no mesh; 0 = as the mesh says.
	Micro int `json:"micro,omitempty"`
	// Hosts is the hosts in the order in which ranks fill them; none = that of the cluster.
	Hosts []string `json:"hosts,omitempty"`
}

// Runs says what can run a plan. One of its fields is not empty.
type Runs struct {
	By     string `json:"by,omitempty"`      // "shoal.train", which follows the mesh
	WhyNot string `json:"why_not,omitempty"` // for people, after "because"; "" = By runs it
}

// A Prediction is what a step takes, in seconds.
type Prediction struct {
	Seconds float64 `json:"seconds"`
	Low     float64 `json:"low"` // by how much measurements of layers differed
	High    float64 `json:"high"`
	Formula string  `json:"formula,omitempty"` // of layers that were not measured, for people
	// Bubble is in which part of the step the stages neither compute nor average, in the mean.
	Bubble    float64 `json:"bubble"`
	AllReduce float64 `json:"all_reduce"` // seconds of the stage that averages longest
	Update    float64 `json:"update"`     // seconds of the longest step of an optimizer
}

// A Stage is what the workers of a pipeline stage do.
type Stage struct {
	First  int     `json:"first"`  // number of its first layer
	Layers int     `json:"layers"` // how many it has
	Busy   float64 `json:"busy"`   // part of the step in which it computes
	Memory int64   `json:"memory"` // bytes of a worker at most
	// Replicas is how many workers have the stage and share each of its micro-batches, and Ahead
	// how many of these they hold at most, where the plan is no mesh; 0 = as the mesh says.
	Replicas int `json:"replicas,omitempty"`
	Ahead    int `json:"ahead,omitempty"`
}

// A Certificate is what is proved.
type Certificate struct {
	Bound float64 `json:"bound"` // seconds of a step; no plan of the space takes less
	// Gap is how much longer the plan takes, as a part of the bound; -1 = the bound is 0.
	Gap   float64 `json:"gap"`
	Space string  `json:"space"` // the plans that were compared, in words
	Proof []Step  `json:"proof,omitempty"`
	// Work is how much went into the proof at most, in about seconds of a processor.
	Work float64 `json:"work,omitempty"`
	// From is the mesh with which the search began; "" = none.
	From string `json:"from,omitempty"`
}

// A Step is an argument by which some plans of the space are no faster than the bound.
type Step struct {
	Argument string  `json:"argument"` // for people, after the number of plans
	Plans    float64 `json:"plans"`    // how many: whole ones, or cuts of layers into stages
	// Groups is how many groups of cuts were ruled out, each as a whole; 0 = each cut alone.
	Groups int `json:"groups,omitempty"`
}

// Hash identifies the text of a model or a cluster.
func Hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Parse reads a deployment. An error says what is wrong. It checks the fields that this package can
// judge alone, as the prediction and the mesh: not that the stages or the hosts fit these, nor that
// the proof holds, nor that there is such a model or cluster.
func Parse(text []byte) (*Deployment, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("deployment: %d bytes; it takes up to %d", len(text), MaxBytes)
	}
	var d Deployment
	if err := strict.Document(text, Version, &d); err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	if (d.Runs.By == "") == (d.Runs.WhyNot == "") {
		return nil, errors.New("deployment: runs says what runs it, in by, or why nothing does, " +
			"in why_not")
	}
	if p := d.Predicted; !(p.Seconds > 0 && p.Low > 0 && p.Low <= p.Seconds &&
		p.Seconds <= p.High) || d.Batch < 1 {
		return nil, fmt.Errorf("deployment: a step of %d samples in %v s, from %v to %v, cannot be",
			d.Batch, p.Seconds, p.Low, p.High)
	}
	if c := d.Certificate; !(c.Work >= 0 && c.Work <= MostWork) {
		return nil, fmt.Errorf("deployment: a proof of %v seconds of a processor; it takes from 0 "+
			"to %d", c.Work, MostWork)
	}
	if d.Mesh == "" {
		if d.Runs.By != "" {
			return nil, fmt.Errorf("deployment: %s is said to run it, and it has no mesh",
				d.Runs.By)
		}
		return &d, nil
	}
	if _, err := layout.ParseMesh(d.Mesh); err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	return &d, nil
}
