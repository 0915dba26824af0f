{"seed":9,"profile":"strict","setup":{"channels":[{"name":"a","capacity":65536,"largest":1400}],"keeps":false}}
{"inherit":{"brief":true}}
