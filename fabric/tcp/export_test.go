package tcp

// Crash ends the agent's part in the job as the death of its process would: all sockets close,
// without a goodbye. The network still has to be closed. Any goroutine may call it.
func (m *Network) Crash() {
	m.mu.Lock()
	m.closing = true
	m.mu.Unlock()
	m.cancel()
	m.listener.Close()
	for _, l := range m.allLinks() {
		for _, s := range l.streams() {
			s.raw.Close()
		}
	}
}
