package fabric

import "sync"

// Payloads counts the payloads that a network was given to send and may still read. A Network has
// one for all of its links.
type Payloads struct {
	mu    sync.Mutex
	count int
	asked []func() // functions to be called when there are none
}

// Unused is Network.Unused: it calls f as soon as no payload is counted, which may be at once.
func (p *Payloads) Unused(f func()) {
	p.mu.Lock()
	p.asked = append(p.asked, f)
	p.mu.Unlock()
	p.add(0)
}

// add changes the number of payloads by n, and calls the functions that waited for none.
func (p *Payloads) add(n int) {
	p.mu.Lock()
	p.count += n
	var asked []func()
	if p.count == 0 {
		asked, p.asked = p.asked, nil
	}
	p.mu.Unlock()
	for _, f := range asked {
		f()
	}
}
