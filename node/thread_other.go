//go:build !linux

package node

import "github.com/shoal-ml/shoal/fabric/arena"

// thread is the thread of a lane.
type thread struct{}

func thisThread() (*thread, error) { return nil, arena.ErrUnsupported }

func (*thread) shun(int) {}

func processor() int { return 0 }
