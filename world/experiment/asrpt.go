package experiment

import (
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/world/cluster"
)

// asrptClusters are those on which A-SRPT is compared, with as many GPUs as keep them busy.
var asrptClusters = []struct{ cluster, gpus int }{{3, 144}, {4, 512}, {5, 16}, {7, 288}, {8, 72},
	{10, 8}}

// asrptRivals are the policies that A-SRPT is compared with by its authors, and asrptOurs those
// that are compared here with the best of them.
var (
	asrptRivals = []string{"spjf", "spwf", "wcs"}
	asrptOurs   = []string{"srsf", "asrpt", "asrpt-tuned"}
)

// asrptSigma is by how much predictions are off: the standard deviation of the logarithm.
const asrptSigma = 1.0

// asrpt asks what an order brings that a single machine gives.
var asrpt = Experiment{
	Name: "asrpt",
	Paper: "Luo, Liu, Lee and Shroff: Online Scheduling for Distributed Machine Learning " +
		"Training (A-SRPT), INFOCOM 2025, arXiv 2501.05563",
	Question: "How much sooner do jobs end in the order in which a single machine of all GPUs " +
		"would be done with them, where predictions are off?",
	Run: runASRPT,
}

// runASRPT plays the policies on clusters of hosts with eight GPUs, where a job on more hosts than
// it needs is 1 to 1.6 times slower, and a job that was preempted or moved goes on 30 s later.
func runASRPT(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"CLUSTER", "GPUS", "BEST OF 3", "MEAN H"},
		Difference: "The published gain is not found on these traces: the virtual machine is " +
			"seldom busy, since jobs cannot use all GPUs, so they start in nearly the order of " +
			"arrival. What pays is to preempt and to bring jobs together. Columns of policies " +
			"are mean completion times over the best of spjf, spwf and wcs, and in brackets the " +
			"99th percentiles; the last row has their geometric means."}
	t.Heads = append(t.Heads, asrptOurs...)
	logs, logs99 := make([]float64, len(asrptOurs)), make([]float64, len(asrptOurs))
	for i, c := range asrptClusters {
		jobs, err := in.Jobs(traceOf(c.cluster), c.gpus)
		if err != nil {
			return nil, err
		}
		play := func(name string) (*cluster.Result, error) {
			policy, err := sched.Named(name)
			if err != nil {
				return nil, err
			}
			return cluster.Play(jobs, cluster.Config{Policy: policy, GPUs: c.gpus, PerHost: 8,
				Costs: cluster.PausePerChange(30), Sigma: asrptSigma, Seed: in.Seed})
		}
		best, mean, p99 := "", math.Inf(1), math.Inf(1)
		for k, name := range asrptRivals {
			in.reportProgress("asrpt", i*6+k, len(asrptClusters)*6)
			r, err := play(name)
			if err != nil {
				return nil, err
			}
			if r.Mean < mean {
				best, mean = name, r.Mean
			}
			p99 = min(p99, r.P99)
		}
		row := []string{fmt.Sprintf("%02d", c.cluster), fmt.Sprint(c.gpus), best, hoursText(mean)}
		for k, name := range asrptOurs {
			in.reportProgress("asrpt", i*6+3+k, len(asrptClusters)*6)
			r, err := play(name)
			if err != nil {
				return nil, err
			}
			logs[k] += portable.Log(r.Mean / mean)
			logs99[k] += portable.Log(r.P99 / p99)
			row = append(row, fmt.Sprintf("%.2f (%.2f)", r.Mean/mean, r.P99/p99))
		}
		t.Rows = append(t.Rows, row)
	}
	row := []string{"all", "", "", ""}
	for k := range asrptOurs {
		n := float64(len(asrptClusters))
		row = append(row, fmt.Sprintf("%.2f (%.2f)", portable.Exp(logs[k]/n),
			portable.Exp(logs99[k]/n)))
	}
	t.Rows = append(t.Rows, row)
	return t, nil
}
